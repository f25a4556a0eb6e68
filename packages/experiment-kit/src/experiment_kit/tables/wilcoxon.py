"""The Wilcoxon signed-rank test of one row of a table against the others."""

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from experiment_kit.tables.paper import load
from experiment_kit.tables.spec import TableSpec

FEWEST = 6  # below six pairs no two-sided exact p-value is under 0.05


@dataclass(frozen=True)
class Significance:
    """The reference row against `row` over `n` columns, beside the printed p-value.

    `method` names the variant of the two-sided test, or says why there is no p-value.
    """

    profile: str
    protocol: str
    row: str
    n: int
    p_value: float | None
    method: str
    paper: float | None


def significance(frame: pd.DataFrame, spec: TableSpec) -> list[Significance]:
    """Test the reference row against each other row over the columns that both have.

    The p-value is absent where there are fewer than six pairs or no difference at all.
    """
    if spec.significance is None:
        return []
    cells = frame[frame["column"].isin([*spec.columns]) & frame["mean"].notna()]
    found = []
    for (profile, protocol), group in cells.groupby(["profile", "protocol"]):
        wide = group.pivot(index="column", columns="row", values="mean")
        if spec.significance.row not in wide:
            continue
        for row in (r for r in group["row"].unique() if r != spec.significance.row):
            pairs = wide[[spec.significance.row, row]].dropna()
            differences = (pairs.iloc[:, 0] - pairs.iloc[:, 1]).to_list()
            p_value, method = signed_rank(differences)
            printed = _printed(spec.significance.table, row)
            result = profile, protocol, row, len(differences), p_value, method, printed
            found.append(Significance(*result))
    return found


def signed_rank(differences: Sequence[float]) -> tuple[float | None, str]:
    """Return the two-sided p-value and its variant: exact, unless a difference is zero.

    That is the rule by which the AGF paper's Table 13 comes out of its Table 1. Tied differences
    share their rank, and the exact distribution is that of ranks without ties. Zeros are dropped
    (`zero_method="wilcox"`), and the p-value is then the normal approximation.

    >>> signed_rank([0.1, 0.4, -0.2, 0.8, 1.6, 3.2])
    (0.09375, 'exact')
    """
    rounded = [round(d, 6) for d in differences]  # 0.3 - 0.2 ties with 0.2 - 0.1
    zeros = rounded.count(0.0)
    if len(rounded) < FEWEST:
        return None, f"fewer than {FEWEST} pairs"
    if zeros == len(rounded):
        return None, "no difference"
    from scipy.stats import wilcoxon  # seconds to import, and most tables have too few pairs

    method = "approx" if zeros else "exact"
    result = wilcoxon(rounded, zero_method="wilcox", alternative="two-sided", method=method)
    return float(result.pvalue), _variant(rounded)


def _variant(differences: Sequence[float]) -> str:
    if zeros := differences.count(0.0):
        return f"normal approximation without continuity correction, zeros dropped ({zeros})"
    ties = len(differences) - len({abs(d) for d in differences})
    return "exact, of ranks as if none were tied" if ties else "exact"


def _printed(table: str, row: str) -> float | None:
    paper = load(table)
    return paper.value(row, next(iter(paper.columns)))
