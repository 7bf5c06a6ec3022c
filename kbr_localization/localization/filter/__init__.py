"""The kernel Bayes filter: `filter.KernelBayesLocalizer`."""
