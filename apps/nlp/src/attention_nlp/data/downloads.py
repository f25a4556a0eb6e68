"""Downloads of the data sets, by the names of their overlays."""

from collections.abc import Mapping

from experiment_kit.data.download import Download, Source

from attention_nlp.data import corpora, glue, superglue
from attention_nlp.data.codexglue import BigCloneBench, Devign
from attention_nlp.data.files import hub_files

_SUPERGLUE = "https://dl.fbaipublicfiles.com/glue/superglue/data/v2"
_PTB = """\
The Penn Treebank is not downloaded: it has a licence of its own, of the Linguistic Data Consortium.
Put Mikolov's ptb.train.txt, ptb.valid.txt and ptb.test.txt into DATA_DIR/ptb. They are in the
archive simple-examples.tgz of his recurrent language models, under simple-examples/data, which is
found in DATA_DIR too.
"""
_PILE = """\
The Pile is streamed from the hub while a run reads it: monology/pile-uncopyrighted.
Nothing is downloaded in advance; --data.init_args.revision=<commit> pins it.
"""
_CODE = {name: c.HUB for c in (Devign, BigCloneBench) for name in c.DATASETS}

DOWNLOADS: Mapping[str, Source] = {
    **{task: hub_files(glue.HUB, task) for task in glue.TASKS},
    **{
        "superglue_rte" if name == "rte" else name: [
            Download(f"{_SUPERGLUE}/{task.folder}.zip", f"superglue/{task.folder}", task.folder)
        ]
        for name, task in superglue.TASKS.items()
    },
    **{
        f"wikitext{size}{kind}": hub_files(corpora.HUB, f"wikitext-{size}-{suffix}")
        for size in (2, 103)
        for kind, suffix in (("", "raw-v1"), ("_tokens", "v1"))
    },
    **{name: hub_files(repo, None) for name, repo in _CODE.items()},
    "devign_generate": hub_files(_CODE["devign"], None),
    "ptb": _PTB,
    "pile": _PILE,
}
