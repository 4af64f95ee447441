// Package task runs the long-running parts of a process together, and stops them in order.
//
// A process is a list of tasks in a [Group]. Each task is added after the tasks that it depends on, so stopping in reverse order never
// stops a task that is still in use. [Life] is the life cycle of a backend with a background task, which runs once and ends when the
// backend is closed.
//
// This package is part of the core.
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

// Task is an operation that runs until its context ends.
type Task interface {
	// Run returns when ctx ends, or earlier with an error that ends the process.
	Run(ctx context.Context) error
	// String returns the name of the task for messages.
	String() string
}

// Func implements [Task] with a function.
type Func struct {
	Name string
	Do   func(ctx context.Context) error // implements Task.Run
}

// Run calls f.Do.
func (f Func) Run(ctx context.Context) error { return f.Do(ctx) }

// String returns f.Name.
func (f Func) String() string { return f.Name }

// Every returns a task that calls f at intervals.
func Every(name string, interval time.Duration, f func(context.Context)) Func {
	return Func{Name: name, Do: func(ctx context.Context) error {
		ticker := time.NewTicker(interval)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				return nil
			case <-ticker.C:
				f(ctx)
			}
		}
	}}
}

// Await waits until all channels are closed, for at most the given time.
func Await(ctx context.Context, most time.Duration, all ...<-chan struct{}) {
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	for _, c := range all {
		select {
		case <-c:
		case <-ctx.Done():
			return
		}
	}
}

// Group runs tasks together and stops them in reverse order. Call Add, then call Run once.
type Group struct {
	log   *slog.Logger
	bound time.Duration
	tasks []Task
}

// NewGroup returns an empty group. All of its tasks together must stop within bound.
func NewGroup(log *slog.Logger, bound time.Duration) *Group {
	return &Group{log: log, bound: bound}
}

// Add adds tasks. A task must be added after those it depends on.
func (g *Group) Add(tasks ...Task) { g.tasks = append(g.tasks, tasks...) }

// Run starts the tasks in the order of Add, and waits until ctx ends or a task fails. Then it stops them in reverse order, each after the
// previous one has returned. The error names tasks that do not return within the bound; they are abandoned. Run returns nil if ctx ended
// and every task stopped without an error.
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

// process is a running task.
type process struct {
	task   Task
	cancel context.CancelFunc
	done   chan struct{} // closed after Run
}

// start runs t. It sends an error of t to failed, which must have room for it, unless the error is only due to the end of t's context.
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

// leftBehind returns an error with the names of the tasks still running, or nil.
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
