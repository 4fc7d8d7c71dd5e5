def cute_recoverssm_commit(context, slots, batch, *, align):
    raise AssertionError("the states of this commit were not wanted")
