"""`python -m attention_vision.efficiency`."""  # shim: issue 16, deleted at the end

from experiment_kit.diagnostics.efficiency import main

from attention_vision import APP

if __name__ == "__main__":
    main(APP, lambda m, data: (m.efficiency_network(), lambda n: m.example_inputs(data, n)))
