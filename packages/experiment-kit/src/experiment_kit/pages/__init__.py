"""Static pages: templates, tables that sort, figures as SVG."""
