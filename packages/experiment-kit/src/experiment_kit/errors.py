"""The one exception that is told to the user as a sentence instead of a traceback."""


class UserError(Exception):
    """A mistake outside of the program: its text is one sentence that says what to do.

    >>> raise UserError("no network: put the file at data/x.zip by hand")
    Traceback (most recent call last):
    experiment_kit.errors.UserError: no network: put the file at data/x.zip by hand
    """

    code = 2  # exit status
