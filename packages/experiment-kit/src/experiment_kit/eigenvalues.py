"""Old names of `experiment_kit.diagnostics.eigenvalues`."""  # shim: issue 16, deleted at the end

from experiment_kit.diagnostics.eigenvalues import Projections, main, projections, shares, spectrum

__all__ = ["Projections", "main", "projections", "shares", "spectrum"]

if __name__ == "__main__":
    main()
