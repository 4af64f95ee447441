package main

import (
	"encoding/json"

	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
)

// row is a row of panels.
type row struct {
	title  string
	closed bool // until it is opened: its queries are not made before
	panels []panel
}

func rows() []row {
	return []row{
		{title: "At a glance: is it the traffic, us or the store?", panels: glance()},
		{title: "Traffic", panels: traffic()},
		{title: "Rejections", closed: true, panels: rejections()},
		{title: "Store", closed: true, panels: store()},
		{title: "Near cache", closed: true, panels: nearCache()},
		{title: "Shedding", closed: true, panels: shedding()},
		{title: "Controls, reservations and plans", closed: true, panels: controls()},
		{title: "Runtime and rules", closed: true, panels: runtime()},
	}
}

// board returns the dashboard in JSON.
func board() ([]byte, error) {
	b := dashboard.NewDashboardBuilder("ratelimitd").Uid("ratelimitd").Tags([]string{"ratelimitd", "rate-limit", "envoy"}).
		Description("Written by make dashboards.").
		Time("now-1h", "now").Refresh("30s").Timezone("browser").Tooltip(dashboard.DashboardCursorSyncCrosshair).Readonly()
	for _, v := range variables() {
		b.WithVariable(v)
	}
	built, err := b.Build()
	if err != nil {
		return nil, err
	}
	if built.Panels, err = panels(); err != nil {
		return nil, err
	}
	built.Links = []dashboard.DashboardLink{link("Operations", "operate.md#dashboards-and-alerts")}
	built.Annotations.List = []dashboard.AnnotationQuery{{
		Name: "New rules", Datasource: datasource(), Enable: true, IconColor: "blue",
		Expr: new(selectors().Replace("changes(ratelimitd_config_loaded_timestamp_seconds{$self}[1m]) > 0")),
	}}
	if err := built.Validate(); err != nil {
		return nil, err
	}
	text, err := json.MarshalIndent(built, "", "  ")
	return append(text, '\n'), err
}

// panels returns all rows with their panels, each with an id and a place.
func panels() ([]dashboard.PanelOrRowPanel, error) {
	var all []dashboard.PanelOrRowPanel
	id, y := uint32(0), uint32(0)
	for _, r := range rows() {
		id++
		head := &dashboard.RowPanel{Type: "row", Id: id, Title: &r.title, Collapsed: r.closed, GridPos: &dashboard.GridPos{W: 24, H: 1, Y: y}, Panels: []dashboard.Panel{}}
		all = append(all, dashboard.PanelOrRowPanel{RowPanel: head})
		y++
		x, top, lowest := uint32(0), y, uint32(0)
		for _, p := range r.panels {
			built, err := p.build()
			if err != nil {
				return nil, err
			}
			id++
			w, h := p.size()
			if x+w > 24 {
				x, top, lowest = 0, top+lowest, 0
			}
			built.Id = new(id)
			built.GridPos = &dashboard.GridPos{X: x, Y: top, W: w, H: h}
			x, lowest = x+w, max(lowest, h)
			if r.closed {
				head.Panels = append(head.Panels, built)
			} else {
				all = append(all, dashboard.PanelOrRowPanel{Panel: &built})
			}
		}
		if !r.closed {
			y = top + lowest
		}
	}
	return all, nil
}

// variables are what one chooses at the top of the dashboard. All values of a label include none at all: there are no namespaces
// outside Kubernetes.
func variables() []variable {
	all := []variable{dashboard.NewDatasourceVariableBuilder("datasource").Label("Data source").Type("prometheus")}
	for _, v := range []struct{ name, label, of, key string }{
		{"namespace", "Namespace", `ratelimitd_build_info`, "namespace"},
		{"job", "Job", `ratelimitd_build_info{namespace=~"$namespace"}`, "job"},
		{"instance", "Server", `ratelimitd_build_info{namespace=~"$namespace", job=~"$job"}`, "instance"},
		{"domain", "Domain", selectors().Replace(`ratelimit_service_rate_limit_total_hits{$self}`), "domain"},
		{"rule", "Rule, first level", selectors().Replace(`ratelimit_service_rate_limit_total_hits{$domains}`), "key1"},
	} {
		text := "label_values(" + v.of + ", " + v.key + ")"
		all = append(all, dashboard.NewQueryVariableBuilder(v.name).Label(v.label).Datasource(*datasource()).
			Query(dashboard.StringOrMap{Map: map[string]any{"query": text, "refId": "values", "qryType": 1}}).Definition(text).
			Refresh(dashboard.VariableRefreshOnTimeRangeChanged).Sort(dashboard.VariableSortAlphabeticalAsc).
			Multi(true).IncludeAll(true).AllValue(".*").Current(everything()))
	}
	return all
}

// everything is the choice of all values.
func everything() dashboard.VariableOption {
	text, value := "All", "$__all"
	return dashboard.VariableOption{Text: dashboard.StringOrArrayOfString{String: &text}, Value: dashboard.StringOrArrayOfString{String: &value}}
}

// variable builds one of the board's variables.
type variable = interface {
	Build() (dashboard.VariableModel, error)
}
