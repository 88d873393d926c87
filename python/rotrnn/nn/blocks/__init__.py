"""Parts of a model around its recurrent layers: residual blocks and stacks, norms, gates, dense maps, pools."""
