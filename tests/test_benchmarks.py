"""The benchmarks run at toy sizes, show their ratios, and write the same as markdown."""

from itertools import chain
from pathlib import Path

import pytest

from tests.processes import start_python, wait_for_end

RUN = Path(__file__).parent.parent / "benchmarks" / "run.py"


EXPECTED = {
    "operators": ["AttnScale / plain (aim <= 1.15)", "DeiT-S, batch"],
    "agf": ["softmax / AGF (aim >= 1 from 1024)", "AGF MiB"],
    "graph": ["GFSA, even layers", "published / ours", "molecules/s of each"],
    "vision": ["GFSA, published", "training images/s", "plain MiB"],
    "nlp": ["GFSA, even layers", "step / plain", "tokens/s over plain's"],
    "sequence": ["softmax, unfused", "AGF", "peak / best linear", "step / Primalformer's"],
    "speech": ["GFSA, published", "seconds a second of speech"],
    "training": ["by hand", "+ spectral monitor: our stack"],
    "diagnosis": ["Swin-T", "light / pass"],
    "monitor": ["DeiT-Ti + GFSA", "UEA encoder + GFSA", "every tenth ms"],
}


@pytest.mark.timeout(300)
def test_benchmarks_run_and_write_their_tables(tmp_path):
    command = [str(RUN), "--quick", "--only", *EXPECTED, "--write", str(tmp_path)]
    log = tmp_path / "log"
    with start_python(command, log) as process:
        assert wait_for_end(process, seconds=240) == 0, log.read_text()
    (written,) = tmp_path.glob(f"*-cpu-{'-'.join(EXPECTED)}.md")
    text = written.read_text()
    for excerpt in ("- commit: ", "- device: ", "| ", "met", *chain(*EXPECTED.values())):
        assert excerpt in text
