// Package task runs what a process runs for long, reports whether it is ready, and stops it in order.
//
// A process is a list of tasks in a [Group]: what others need is added before them, so stopping in reverse order never
// takes away what is still in use. How well the process is, is a [Health], which each part tells about its own component.
package task

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"
)

// Task is something that runs until its context ends.
type Task interface {
	// Run returns when ctx ends, or earlier with an error that ends the process.
	Run(ctx context.Context) error
	// String names the task for messages.
	String() string
}

// Func is a [Task] made of a function.
type Func struct {
	Name string
	Do   func(ctx context.Context) error // see [Task]
}

// Run calls f.Do.
func (f Func) Run(ctx context.Context) error { return f.Do(ctx) }

// String is f.Name.
func (f Func) String() string { return f.Name }

// Group runs tasks together and stops them in reverse order. Add what it shall run, then call Run once.
type Group struct {
	log   *slog.Logger
	bound time.Duration
	tasks []Task
}

// NewGroup makes an empty group, whose tasks have bound, all of them together, to stop.
func NewGroup(log *slog.Logger, bound time.Duration) *Group {
	return &Group{log: log, bound: bound}
}

// Add adds tasks; those that others need come before them.
func (g *Group) Add(tasks ...Task) { g.tasks = append(g.tasks, tasks...) }

// Run starts the tasks in the order in which they were added, and waits until ctx ends or one of them fails. Then it
// stops them, the last one first, each after the one before has returned. What does not return within the bound is named
// in the error and left behind. The error is nil where ctx ended and every task stopped without one.
func (g *Group) Run(ctx context.Context) error {
	failed := make(chan error, len(g.tasks))
	running := make([]*process, 0, len(g.tasks))
	for _, t := range g.tasks {
		running = append(running, start(context.WithoutCancel(ctx), t, failed))
	}
	var first error
	select {
	case <-ctx.Done():
	case first = <-failed:
	}
	g.stop(context.WithoutCancel(ctx), running)
	errs := []error{first, leftBehind(running, g.bound)}
	for len(failed) > 0 {
		errs = append(errs, <-failed)
	}
	return errors.Join(errs...)
}

// process is a task that was started.
type process struct {
	task   Task
	cancel context.CancelFunc
	done   chan struct{} // closed once Run has returned
}

// start runs t. Its error goes to failed, which must have room for it, unless that is only its own context's end.
func start(ctx context.Context, t Task, failed chan<- error) *process {
	ctx, cancel := context.WithCancel(ctx)
	p := &process{task: t, cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(p.done)
		err := t.Run(ctx)
		if err != nil && (ctx.Err() == nil || !errors.Is(err, context.Canceled)) {
			failed <- fmt.Errorf("%s: %w", t, err)
		}
	}()
	return p
}

// stop ends the tasks one after the other, within the group's bound.
func (g *Group) stop(ctx context.Context, running []*process) {
	ctx, cancel := context.WithTimeout(ctx, g.bound)
	defer cancel()
	for _, p := range slices.Backward(running) {
		g.log.Debug("stopping", "task", p.task.String())
		p.cancel()
		select {
		case <-p.done:
		case <-ctx.Done():
		}
	}
}

// leftBehind is an error that names the tasks that still run, or nil.
func leftBehind(running []*process, bound time.Duration) error {
	var names []string
	for _, p := range running {
		select {
		case <-p.done:
		default:
			names = append(names, p.task.String())
		}
	}
	if names == nil {
		return nil
	}
	return fmt.Errorf("stopping: still running after %v: %s", bound, strings.Join(names, ", "))
}
