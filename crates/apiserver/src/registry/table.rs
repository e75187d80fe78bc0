//! Cells of `kubectl get`: ages, ready counts and the like.
