"""Scikit-learn's own tests on our estimators: `plugin` puts them in, `exceptions` lists what they need not pass."""
