"""The figures that the papers print, drawn from runs, models and results that are here."""
