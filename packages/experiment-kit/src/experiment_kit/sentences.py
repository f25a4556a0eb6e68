"""Old names of `experiment_kit.errors`."""  # shim: issue 16, deleted at the end

from experiment_kit.errors import exit_on_user_error as told
from experiment_kit.errors import summarize_parser_error as one_sentence

__all__ = ["one_sentence", "told"]
