package server

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"net"
	"slices"

	"github.com/ratelimitd/ratelimitd/internal/decide/admission"
	"github.com/ratelimitd/ratelimitd/internal/leaf/task"
	"github.com/ratelimitd/ratelimitd/internal/process/settings"
	"github.com/ratelimitd/ratelimitd/internal/process/stats"
	"github.com/ratelimitd/ratelimitd/internal/process/stats/statsd"
	"github.com/ratelimitd/ratelimitd/pkg/backend/redis"
	"github.com/ratelimitd/ratelimitd/pkg/backend/remote"
)

// statistics holds the exporters of the registry.
type statistics struct {
	sink       task.Task // statsd or DogStatsD; nil if neither is configured
	prometheus stats.PrometheusConfig
}

// newRegistry returns the registry with the metrics of the process.
func newRegistry(s *settings.Settings, release string) *stats.Registry {
	r := stats.New()
	if s.Stats.Milliseconds {
		r = stats.NewMilliseconds()
	}
	r.BuildInfo(release)
	r.Source(stats.Runtime())
	r.Source(fromTheStart(r))
	for _, t := range extraTags(s) {
		if slices.Contains([]string{
			"asg", "az", "backend", "canary", "envoyservice", "facet", "host", "period", "project", "region", "shard", "source", "window",
		}, t.Name) {
			r.Counter(stats.ReservedTag).Add(1) // the reference's warning for a tag with this name
		}
	}
	return r
}

// fromTheStart reports counters used by alerts under ratelimitd's names, starting at 0. Under the reference's names these series
// start with the first event, as in the reference, which increase() misses.
func fromTheStart(r *stats.Registry) func(*stats.Values) {
	loads := r.Counter(stats.ConfigLoadError)
	store := r.Counter(stats.ShouldRateLimitError, "redis_error")
	service := r.Counter(stats.ShouldRateLimitError, "service_error")
	return func(v *stats.Values) {
		v.Counter(stats.ConfigLoadErrorsTotal, loads.Load())
		v.Counter(stats.CallErrorsTotal, store.Load(), "redis_error")
		v.Counter(stats.CallErrorsTotal, service.Load(), "service_error")
	}
}

// newStatistics returns the exporters: the statsd sink and the configuration for Prometheus.
func newStatistics(s *settings.Settings, log *slog.Logger, r *stats.Registry) (statistics, error) {
	v := statistics{prometheus: stats.PrometheusConfig{Labels: extraTags(s)}}
	if s.Stats.Disable {
		return v, nil
	}
	if file := s.Stats.PrometheusMapper; file != "" {
		m, err := stats.LoadMapper(file)
		switch {
		case errors.Is(err, fs.ErrNotExist): // Envoy Gateway may set the path of a missing ConfigMap
			log.Warn("the mapping file does not exist, so series have their built-in names", "setting", "PROMETHEUS_MAPPER_YAML="+file)
		case err != nil:
			return v, fmt.Errorf("PROMETHEUS_MAPPER_YAML: %w", err)
		default:
			v.prometheus.Mapper = m
		}
	}
	if !s.Stats.Statsd && !s.Stats.DogStatsd {
		return v, nil
	}
	c := statsd.Config{
		Network:  s.Stats.StatsdProtocol,
		Address:  net.JoinHostPort(s.Stats.StatsdHost, s.Stats.StatsdPort),
		Interval: s.Stats.FlushInterval,
		Tags:     extraTags(s),
	}
	if s.Stats.DogStatsd {
		var err error
		c.Network, c.Dog, c.DogTags = "udp", true, datadogTags(&s.Stats.Datadog)
		if c.Mogrifiers, err = mogrifiers(s.Stats.Mogrifiers); err != nil {
			return v, err
		}
	}
	v.sink = statsd.New(r, log, c)
	return v, nil
}

// extraTags returns EXTRA_TAGS, sorted by name.
func extraTags(s *settings.Settings) []stats.Label {
	var tags []stats.Label
	for _, name := range slices.Sorted(maps.Keys(s.Stats.ExtraTags)) {
		tags = append(tags, stats.Label{Name: name, Value: s.Stats.ExtraTags[name]})
	}
	return tags
}

// datadogTags returns the tags that the Datadog client adds.
func datadogTags(d *settings.Datadog) []stats.Label {
	return []stats.Label{
		{Name: "dd.internal.entity_id", Value: d.EntityID},
		{Name: "env", Value: d.Env},
		{Name: "service", Value: d.Service},
		{Name: "version", Value: d.Version},
	}
}

func mogrifiers(all []settings.Mogrifier) ([]statsd.Mogrifier, error) {
	var made []statsd.Mogrifier
	for _, s := range all {
		var tags []stats.Label
		for _, t := range s.Tags {
			tags = append(tags, stats.Label{Name: t[0], Value: t[1]})
		}
		m, err := statsd.NewMogrifier(s.Key, s.Pattern, s.Name, tags)
		if err != nil {
			return nil, err
		}
		made = append(made, m)
	}
	return made, nil
}

// newGate returns the gate that admits calls, and registers its metrics.
func newGate(r *stats.Registry) *admission.Gate {
	g := admission.New(remote.DefaultOpTimeout)
	r.Source(func(v *stats.Values) {
		now := g.Stats()
		v.Gauge(stats.Calls, float64(now.Calls))
		v.Gauge(stats.CallsLimit, float64(now.Limit))
		v.Gauge(stats.CallsWait, now.Wait.Seconds())
	})
	return g
}

// redisPools returns the metrics of Redis connections, under the reference's names.
func redisPools(b *redis.Backend) func(*stats.Values) {
	return func(v *stats.Values) {
		for i, p := range b.Pools() {
			active, opened, closed := stats.RedisPoolActive, stats.RedisPoolTotal, stats.RedisPoolLocalClose
			if i > 0 {
				active, opened, closed = stats.RedisPerSecondPoolActive, stats.RedisPerSecondPoolTotal, stats.RedisPerSecondPoolLocalClose
			}
			v.Gauge(active, float64(p.Opened-p.Closed))
			v.Counter(opened, p.Opened)
			v.Counter(closed, p.Closed)
		}
	}
}
