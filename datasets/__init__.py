"""Tables that bdpvi loads, with the constants that preprocessed them."""
