//! The syntax of names, labels and annotations, with upstream's explanations.
