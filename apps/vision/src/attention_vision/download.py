"""`python -m attention_vision.download <data set> ...`."""  # shim: issue 16, deleted at the end

import sys

from experiment_kit.data.download import download_dataset
from experiment_kit.data.paths import find_data_root
from experiment_kit.errors import UserError, exit_on_user_error

from attention_vision import APP

if __name__ == "__main__":
    with exit_on_user_error():
        for name in sys.argv[1:]:
            if isinstance(files := APP.downloads[name], str):
                print(files, end="")
            elif root := find_data_root(None):
                print(*download_dataset(files, root), sep="\n")
            else:
                raise UserError("set DATA_DIR to the folder of the data")
