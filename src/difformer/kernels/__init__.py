"""Fast replacements for the step of a layer, chosen by one predicate: `difformer.kernels.fused.why_not_fused`."""
