"""Programs as Pyro's users write them: a zoo that PrivateSVI must train, or help."""
