"""The commands of ``bdpvi``, thin wrappers of the Python API. They import what they need when they
run, so that ``--help`` is quick."""
