"""Downloads go to where the data modules look for them."""

from pathlib import Path

import pytest
from attention_graph import APP
from attention_graph.data import PCQM, GraphData, MoleculeNet, Zinc

from tests.apps.graph.data.files import PCQM_SPLIT, write_pcqm, write_zinc_pickles


@pytest.mark.parametrize("module", [Zinc, PCQM, MoleculeNet])
def test_a_download_is_found(module: type[GraphData], tmp_path: Path) -> None:
    for name in set(module.DATASETS) & set(APP.downloads):
        first, *others = APP.downloads[name]
        assert all(download.url.startswith("https://") for download in (first, *others))
        path = tmp_path / first.path
        if module is MoleculeNet:
            path.parent.mkdir(exist_ok=True)
            path.touch()
        elif module is PCQM:
            write_pcqm(path, PCQM_SPLIT)
        else:
            write_zinc_pickles(path)
            assert all((tmp_path / download.path).is_file() for download in others)
        assert module.find_data(name, str(tmp_path)) == path
    assert set(APP.downloads) == {"zinc", *PCQM.DATASETS, *MoleculeNet.DATASETS}
