"""Diagnosis of over-smoothing: `diagnose(model, batch)` measures every attention layer and head."""

from attention_core.diagnosis.diagnose import diagnose
from attention_core.diagnosis.report import Diagnosis, LayerDiagnosis, Leverage, TokenMeasures
