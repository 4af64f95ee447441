package server

import (
	"context"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/decide/plans"
	"github.com/ratelimitd/ratelimitd/internal/leaf/count"
	"github.com/ratelimitd/ratelimitd/internal/leaf/task"
	"github.com/ratelimitd/ratelimitd/internal/operate/tenants"
	"github.com/ratelimitd/ratelimitd/internal/process/stats"
	"github.com/ratelimitd/ratelimitd/internal/rules/configwatch/file"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

// firstPlans bounds how long tenant files wait for the rules, which define the plans.
const firstPlans = 10 * time.Second

// takeTenants sets up the table of tenants, from TENANTS_FILE and the backend.
func (v *Server) takeTenants() {
	path := v.settings.Rules.TenantsFile
	events := map[tenants.Event]*count.Counter{
		tenants.Loaded:  v.registry.Counter(stats.TenantsLoadsTotal, "loaded"),
		tenants.Invalid: v.registry.Counter(stats.TenantsLoadsTotal, "invalid"),
		tenants.Unread:  v.registry.Counter(stats.TenantsUnreadTotal),
	}
	v.tenants = tenants.New(tenants.Config{
		Files: path != "",
		Store: v.store.tenants,
		Log:   v.log,
		Event: func(e tenants.Event) { events[e].Add(1) },
		Check: func(plan string, requests uint64) error { return v.limiter.Rules().CheckNumber(plan, requests) },
		ReloadFiles: func() {
			if v.listed != nil {
				v.listed.Reload()
			}
		},
	})
	v.registry.Source(v.tenantGauges)
	if path != "" {
		l := tenantFiles(path)
		l.Secrets = v.settings.SecretFiles()
		v.listed = file.New(v.log, file.Config{Layout: l, List: func(files []file.File, problems descriptors.Problems) {
			_ = loadTenants(v.tenants, files, problems) // Load logs the error
		}}, nil)
	}
}

// followTenants watches TENANTS_FILE once there are rules.
func (v *Server) followTenants(ctx context.Context) error {
	task.Await(ctx, firstPlans, v.watcher.First())
	return v.listed.Run(ctx)
}

// tenantFiles returns the layout of TENANTS_FILE.
func tenantFiles(path string) file.Layout {
	l := file.Path(path)
	l.What = "tenants"
	return l
}

// ReadTenants replaces the table with the files of TENANTS_FILE. It returns the error of [tenants.Tenants.Load].
func ReadTenants(t *tenants.Tenants, path string) error {
	files, problems := file.List(tenantFiles(path))
	return loadTenants(t, files, problems)
}

// loadTenants replaces the table with files.
func loadTenants(t *tenants.Tenants, files []file.File, problems descriptors.Problems) error {
	var unread []tenants.Problem
	for _, p := range problems {
		if !p.Warning {
			unread = append(unread, tenants.Problem{File: p.File, Text: p.Text})
		}
	}
	inputs := make([]tenants.Input, 0, len(files))
	for i := range files {
		f, err := files[i].Open()
		if err != nil {
			unread = append(unread, tenants.Problem{File: files[i].Name, Text: err.Error()})
			continue
		}
		defer func() { _ = f.Close() }() // opened for reading
		inputs = append(inputs, tenants.Input{Name: files[i].Name, Reader: f})
	}
	return t.Load(inputs, unread...)
}

func (v *Server) tenantGauges(values *stats.Values) {
	unknown := map[plans.Source]int{}
	for _, u := range v.tenants.Unknown() {
		unknown[u.Source] += u.Tenants
	}
	for source, label := range map[plans.Source]string{plans.File: "file", plans.Store: "store"} {
		if source == plans.Store && !v.tenants.StoreRead() {
			continue
		}
		values.Gauge(stats.Tenants, float64(v.tenants.Len(source)), label)
		values.Gauge(stats.TenantsUnknownPlan, float64(unknown[source]), label)
	}
}
