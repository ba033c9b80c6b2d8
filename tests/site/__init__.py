"""The site: Sphinx builds it from ``docs`` and from the code, into ``build/site``.

``python -m tests.site`` builds it, and ``python -m tests.site --links`` asks all external links
whether they answer. ``python -m tests.site --add FOLDER`` adds this version to a site of several
versions, which the side bar offers. The pages of ``docs`` stay plain Markdown, as a forge shows
it; their order is that of ``docs/index.md``.
"""
