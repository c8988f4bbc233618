//! Single laws, each by a short script.
