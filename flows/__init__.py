"""What Prefect runs: the chain, the refresh, one stage again; and the `trainwright` command."""
