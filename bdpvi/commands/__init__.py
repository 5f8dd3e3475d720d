"""The commands of ``bdpvi``, thin over what scripts call. What they need is imported when they run,
so that ``--help`` is quick."""
