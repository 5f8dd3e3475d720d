"""The exact route: the maximum of the ELBO, and every neighbour's."""
