package server

import (
	"context"
	"fmt"
	"strings"

	"github.com/ratelimitd/ratelimitd/internal/leaf/count"
	"github.com/ratelimitd/ratelimitd/internal/leaf/task"
	"github.com/ratelimitd/ratelimitd/internal/process/settings"
	"github.com/ratelimitd/ratelimitd/internal/process/stats"
	"github.com/ratelimitd/ratelimitd/internal/rules/configwatch"
	"github.com/ratelimitd/ratelimitd/internal/rules/configwatch/file"
	"github.com/ratelimitd/ratelimitd/internal/rules/configwatch/xds"
	"github.com/ratelimitd/ratelimitd/internal/rules/overlay"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

// rulesSource loads rules from files or from a control plane.
type rulesSource interface {
	task.Task
	First() <-chan struct{} // closed once the first load has succeeded or failed
	Reload()                // loads the rules again, without waiting

	ReloadNow(ctx context.Context) error // like Reload, but waits for the outcome; returns an error if there is none
	Try() (*configwatch.Outcome, error)  // loads the rules without using them; returns an error if it cannot
}

// takeRules sets up the source of rules that CONFIG_TYPE names, and the overlay.
func (v *Server) takeRules(c configwatch.Config) {
	if v.settings.Rules.Overlay != "" {
		c.Overlay = overlay.With
	}
	v.takeFrom(c)
	if c.Overlay != nil {
		l := file.Layout{Root: v.settings.Rules.Overlay, IgnoreDotFiles: v.settings.Rules.IgnoreDotFiles, What: "overlay", Secrets: v.settings.SecretFiles()}
		v.overlay = file.New(v.log, file.Config{Layout: l}, v.loads.Overlay())
		v.watcher = &overlaid{v.watcher, v.overlay}
	}
}

// overlaid is a source of rules with an overlay. It starts once the overlay has been read.
type overlaid struct {
	rulesSource

	overlay *file.Watcher
}

// Run implements [task.Task].
func (o *overlaid) Run(ctx context.Context) error {
	select {
	case <-o.overlay.First():
		return o.rulesSource.Run(ctx)
	case <-ctx.Done():
		return nil
	}
}

// Reload reloads the overlay and the rules.
func (o *overlaid) Reload() {
	o.overlay.Reload()
	o.rulesSource.Reload()
}

// ReloadNow reloads the overlay, and then the rules.
func (o *overlaid) ReloadNow(ctx context.Context) error {
	if err := o.overlay.ReloadNow(ctx); err != nil {
		return err
	}
	return o.rulesSource.ReloadNow(ctx)
}

func (v *Server) takeFrom(c configwatch.Config) {
	if !v.overXDS() {
		v.loads = configwatch.New(v.log, c)
		v.watcher = file.New(v.log, file.Config{Layout: layout(&v.settings)}, v.loads)
		return
	}
	for _, e := range xds.Events() {
		v.xdsEvent(e) // create the series at 0
	}
	c.Empty = true // a control plane sends an empty set once the last policy is deleted
	v.loads = configwatch.New(v.log, c)
	client := xds.New(v.log, v.xdsConfig(), v.loads)
	v.rules.connected = client.Connected
	v.registry.Gauge(stats.XDSConnected, func() float64 {
		if client.Connected() {
			return 1
		}
		return 0
	})
	v.watcher = client
}

// overXDS reports whether a control plane provides the rules.
func (v *Server) overXDS() bool { return strings.HasPrefix(v.settings.Rules.Source, "GRPC_XDS_") }

// origin describes the source of rules, with its number of files or resources.
func (v *Server) origin(sources int) string {
	if v.overXDS() {
		return fmt.Sprintf("%s from the control plane at %s", descriptors.CountText(sources, "resource"), v.settings.XDS.Server)
	}
	return fmt.Sprintf("%s in %s", descriptors.CountText(sources, "file"), layout(&v.settings).Dir())
}

func layout(s *settings.Settings) file.Layout {
	return file.Layout{
		Root:           s.Rules.Root,
		Subdirectory:   s.Rules.Subdirectory,
		AppDirectory:   s.Rules.AppDirectory,
		WatchRoot:      s.Rules.WatchRoot,
		IgnoreDotFiles: s.Rules.IgnoreDotFiles,
		Secrets:        s.SecretFiles(),
	}
}

func (v *Server) xdsConfig() xds.Config {
	s := &v.settings.XDS
	return xds.Config{
		Server:       s.Server,
		Delta:        v.settings.Rules.Source == "GRPC_XDS_DELTA",
		NodeID:       s.NodeID,
		NodeMetadata: s.NodeMetadata,
		Headers:      s.Headers,
		TLS:          xds.TLS{On: s.TLS, Cert: s.Cert, Key: s.Key, CA: s.CA, ServerName: s.SAN},
		MaxMessage:   s.MaxMessage,
		KeepOnEmpty:  s.KeepOnEmpty,
		Backoff: xds.Backoff{
			First: max(s.FirstWait, 1), Initial: max(s.BackoffInitial, 1), Max: max(s.BackoffMax, 1), // 0 would mean the default
			Factor: s.BackoffFactor, NoJitter: !s.BackoffJitter,
		},
		Hooks: xds.Hooks{
			Event:   func(e xds.Event) { v.xdsEvent(e).Add(1) },
			Current: v.rules.current,
			Waiting: v.rules.waiting,
		},
	}
}

// xdsEvent returns the counter of e.
func (v *Server) xdsEvent(e xds.Event) *count.Counter {
	return v.registry.Counter(stats.XDSEventsTotal, string(e))
}
