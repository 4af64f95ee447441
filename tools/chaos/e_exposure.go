package main

import "context"

func exposure(ctx context.Context, e *env) error { return nil }
