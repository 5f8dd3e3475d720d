"""The exact route: the maximum of the ELBO for the data and for every neighbour."""
