"""What a model is built of around its recurrent layers: residual blocks and stacks, norms, gates, dense maps, pools."""
