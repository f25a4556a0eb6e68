"""Draw README's figure from the runs of `make vision METHODS=plain,centered,contranorm,sharpening`.

    .venv/bin/python docs/figures/plot_depth_profile.py

It reads the last `spectral.json` of each run and writes `depth-profile-{light,dark}.svg` beside
this file.
"""

import json
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

RUNS = Path("runs/vision/digits-deit_tiny")
METHODS = {
    "plain": "plain attention",
    "centered": "centered attention",
    "contranorm": "ContraNorm",
    "sharpening": "eigenvalues of $W_V W_O$ in [-1, 0]",
}
MEASURES = {
    "hfc_lfc": "HFC / LFC of the tokens",
    "token_cosine": "cosine between tokens",
}
THEMES = {"light": "#1f2328", "dark": "#e6edf3"}  # the text colors of GitHub's pages


def load_depth_profile(method: str) -> list[dict[str, float]]:
    """Load the measures behind the embedding and behind each block."""
    (path,) = RUNS.glob(f"{method}/seed-0-*/spectral.json")
    return json.loads(path.read_text(encoding="utf-8"))["depth"]


def plot_depth_profiles(color: str) -> Figure:
    """Plot each measure against depth, one line a method."""
    with mpl.rc_context({f"{name}.color": color for name in ("text", "xtick", "ytick")}):
        figure = Figure(figsize=(8.6, 2.9), layout="constrained")
        axes = figure.subplots(1, len(MEASURES))
        for axis, (name, title) in zip(axes, MEASURES.items(), strict=True):
            for method, label in METHODS.items():
                axis.plot([layer[name] for layer in load_depth_profile(method)], label=label)
            axis.set_title(title, fontsize=10)
            axis.set_xlabel("layer", color=color)
            axis.set_facecolor("none")
            axis.grid(alpha=0.25)
            axis.spines[:].set_visible(False)
        axes[0].set_ylim(bottom=0)
        axes[1].set_ylim(0, 1)
        figure.legend(
            *axes[0].get_legend_handles_labels(), loc="outside right center", frameon=False
        )
    return figure


def main() -> None:
    """Write the figure for light and for dark pages."""
    mpl.rcParams["svg.hashsalt"] = "allpass"  # the same runs give the same file
    for theme, color in THEMES.items():
        path = Path(__file__).with_name(f"depth-profile-{theme}.svg")
        plot_depth_profiles(color).savefig(path, transparent=True, metadata={"Date": None})
        print(f"wrote {path}")


if __name__ == "__main__":
    main()
