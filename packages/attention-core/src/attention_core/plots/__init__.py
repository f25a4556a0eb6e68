"""Figures of measures and maps: plain data in, a matplotlib Figure without pyplot's state out.

Pages, TensorBoard, the figures of papers and `report.plot()` draw by these functions. `methods`
maps names to their data, which are drawn side by side; `lines` maps them to the style of their
line, and leaves the legend to the caller. The first figure imports matplotlib, of the extra `plot`.
"""

from attention_core.plots.depth import MEASURES, draw_curves, plot_curves, plot_depth_profiles
from attention_core.plots.diagnosis import place_layers, plot_diagnosis
from attention_core.plots.maps import plot_attention_maps, plot_spectra_grid
from attention_core.plots.panels import Lines, add_legend, make_panels, render_figure, use_style
from attention_core.plots.spectra import draw_responses, plot_frequency_responses, plot_smoothing
