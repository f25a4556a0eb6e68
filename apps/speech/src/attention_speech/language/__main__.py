"""`python -m attention_speech.language {fit,validate,test}`."""

from experiment_kit.cli import run_app

from attention_speech.language import APP

if __name__ == "__main__":
    run_app(APP)
