"""The route of ``guides.Laplace``: the mode, and how far any record moves it."""
