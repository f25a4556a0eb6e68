"""Static HTML pages from Jinja templates; a page stands alone and names no address."""

from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from experiment_kit.run import write_atomically

TEMPLATES = Path(str(files("experiment_kit.launch"))) / "templates"


def write_page(path: Path, template: Path, **context: Any) -> None:
    """Render a template, which may extend those of this package, into one file."""
    environment = Environment(
        loader=FileSystemLoader([template.parent, TEMPLATES]),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    write_atomically(path, environment.get_template(template.name).render(context))
