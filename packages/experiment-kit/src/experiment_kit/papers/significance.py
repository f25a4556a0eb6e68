"""The Wilcoxon signed-rank test of one row of a table against the others."""

from collections.abc import Sequence
from dataclasses import dataclass

from experiment_kit.papers.results import TableResults
from experiment_kit.papers.values import load_table

MIN_PAIRS = 6  # with fewer pairs no two-sided exact p-value is below 0.05


@dataclass(frozen=True)
class Significance:
    """The reference row against `row` over `n` columns, beside the printed p-value.

    `method` names the variant of the two-sided test, or the reason why there is no p-value.
    """

    profile: str
    protocol: str
    row: str
    n: int
    p_value: float | None
    method: str
    printed: float | None


def compare_rows(results: TableResults) -> list[Significance]:
    """Test the reference row against each other row over the columns that both have.

    The p-value is absent where there are fewer than six pairs or no difference at all.
    """
    spec = results.spec
    if spec.significance is None:
        return []
    reference, printed = spec.significance.row, load_table(spec.significance.table)
    cells = results.cells[results.cells["column"].isin([*spec.columns])]
    tests = []
    for (profile, protocol), group in cells.groupby(["profile", "protocol"]):
        wide = group.pivot(index="column", columns="row", values="mean")
        if reference not in wide:
            continue
        for row in (r for r in group["row"].unique() if r != reference):
            pairs = wide[[reference, row]].dropna()
            differences = (pairs.iloc[:, 0] - pairs.iloc[:, 1]).to_list()
            p_value, method = signed_rank(differences)
            value = printed.printed_value(row, next(iter(printed.columns)))
            pair = profile, protocol, row, len(differences)
            tests.append(Significance(*pair, p_value, method, value))
    return tests


def signed_rank(differences: Sequence[float]) -> tuple[float | None, str]:
    """Return the two-sided p-value and its variant: exact, unless a difference is zero.

    This rule reproduces the AGF paper's Table 13 from its Table 1. Tied differences share their
    rank, and the exact distribution is that of ranks without ties. Zeros are dropped
    (`zero_method="wilcox"`), and the p-value is then the normal approximation.

    >>> signed_rank([0.1, 0.4, -0.2, 0.8, 1.6, 3.2])
    (0.09375, 'exact')
    """
    rounded = [round(d, 6) for d in differences]  # 0.3 - 0.2 ties with 0.2 - 0.1
    zeros = rounded.count(0.0)
    if len(rounded) < MIN_PAIRS:
        return None, f"fewer than {MIN_PAIRS} pairs"
    if zeros == len(rounded):
        return None, "no difference"
    from scipy.stats import wilcoxon  # takes seconds to import; most tables have too few pairs

    method = "approx" if zeros else "exact"
    result = wilcoxon(rounded, zero_method="wilcox", alternative="two-sided", method=method)
    if zeros:
        variant = f"normal approximation without continuity correction, zeros dropped ({zeros})"
    else:
        ties = len(rounded) > len({abs(d) for d in rounded})
        variant = "exact, of ranks as if none were tied" if ties else "exact"
    return float(result.pvalue), variant
