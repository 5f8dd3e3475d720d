"""Methods at equal ε, set against each other and searched: the extra ``bdpvi[bench]``."""
