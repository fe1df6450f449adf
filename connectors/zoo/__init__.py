"""The zoo: wrong connectors, mutants of the reference connector, each from a real defect."""
