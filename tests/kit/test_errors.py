"""A mistake of a user is one sentence, however long what it quotes is."""

from experiment_kit.errors import UserError


def refuse(quoted: str) -> None:
    raise UserError(f"a.txt, line 3: {quoted!r} is no number")


def test_a_sentence_is_cut_in_its_middle(read_error) -> None:
    assert read_error(refuse, "x" * 200) == f"error: a.txt, line 3: '{'x' * 200}' is no number"
    found = read_error(refuse, "x" * 1_000_000)
    assert found.startswith("error: a.txt, line 3: 'xxx")
    assert found.endswith("xxx' is no number")
    assert len(found) == len("error: ") + 403
