package main

import (
	"cmp"
	"strings"

	"github.com/grafana/grafana-foundation-sdk/go/cog"
	"github.com/grafana/grafana-foundation-sdk/go/common"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
	"github.com/grafana/grafana-foundation-sdk/go/heatmap"
	"github.com/grafana/grafana-foundation-sdk/go/prometheus"
	"github.com/grafana/grafana-foundation-sdk/go/stat"
	"github.com/grafana/grafana-foundation-sdk/go/table"
	"github.com/grafana/grafana-foundation-sdk/go/text"
	"github.com/grafana/grafana-foundation-sdk/go/timeseries"
)

// docs is where the pages are that panels and alerts lead to.
const docs = "https://github.com/ratelimitd/ratelimitd/blob/main/docs/"

// kind is how a panel shows its queries.
type kind int

const (
	graph kind = iota
	areas      // a graph of parts that add up
	number
	list // of the labels of series as they are now
	heat
	words // of the panel itself; it has no queries
)

// panel is one panel. Its queries may say $self for the servers that were chosen, $domains for those and the domains, and $rules
// for those and the rules. What other programs have, too, such as process_*, needs $own behind it: where all jobs are chosen, $self
// means everything that Prometheus scrapes.
type panel struct {
	title string
	help  string // what it says, and what to do about it
	see   string // the page below docs, with its section
	kind  kind
	unit  string
	width uint32 // of 24; if 0, 8, or 4 for a number
	high  uint32 // if 0, 8, or 4 for a number
	// warn and bad are from where a value is yellow and red. If bad is 0, values have no such meaning.
	warn, bad float64
	below     bool // values below warn and bad are those to worry about
	states    map[string]string
	none      string // what a number says if there are no series
	queries   []query
}

type query struct {
	expr   string
	legend string
}

// selectors are what queries abbreviate.
func selectors() *strings.Replacer {
	const self = `namespace=~"$namespace", job=~"$job", instance=~"$instance"`
	const domains = self + `, domain=~"$domain"`
	const own = `and on (namespace, job, instance) ratelimitd_build_info{` + self + `}`
	return strings.NewReplacer("$self", self, "$own", own, "$domains", domains, "$rules", domains+`, key1=~"$rule"`)
}

// size returns how wide and how high a panel is.
func (p *panel) size() (w, h uint32) {
	if p.kind == number {
		return cmp.Or(p.width, 4), cmp.Or(p.high, 4)
	}
	return cmp.Or(p.width, 8), cmp.Or(p.high, 8)
}

// build returns the panel in the SDK's types, without its id and place.
func (p *panel) build() (dashboard.Panel, error) {
	built, err := p.builder().Build()
	if err != nil {
		return built, err
	}
	built.Title = &p.title
	if p.kind == words {
		return built, nil
	}
	built.Description, built.Datasource = &p.help, datasource()
	built.Links = []dashboard.DashboardLink{link("What to do about it", p.see)}
	if built.FieldConfig == nil {
		built.FieldConfig = dashboard.NewFieldConfigSource()
	}
	p.defaults(&built.FieldConfig.Defaults)
	for i, q := range p.queries {
		target := prometheus.NewDataqueryBuilder().Expr(selectors().Replace(q.expr)).LegendFormat(q.legend).Datasource(*datasource()).RefId(string(rune('A' + i)))
		switch p.kind {
		case list:
			target.Instant().Format(prometheus.PromQueryFormatTable)
		case heat:
			target.Range().Format(prometheus.PromQueryFormatHeatmap)
		case graph, areas, number, words:
			target.Range().Format(prometheus.PromQueryFormatTimeSeries)
		}
		q, err := target.Build()
		if err != nil {
			return built, err
		}
		built.Targets = append(built.Targets, q)
	}
	return built, nil
}

// builder returns what builds a panel of this kind.
func (p *panel) builder() cog.Builder[dashboard.Panel] {
	switch p.kind {
	case number:
		color := common.BigValueColorModeBackground
		if p.bad == 0 {
			color = common.BigValueColorModeNone
		}
		return stat.NewPanelBuilder().ColorMode(color).GraphMode(common.BigValueGraphModeArea).Orientation(common.VizOrientationAuto).
			ReduceOptions(common.NewReduceDataOptionsBuilder().Calcs([]string{"lastNotNull"}).Values(false).Fields(""))
	case list:
		return table.NewPanelBuilder().WithTransformation(dashboard.DataTransformerConfig{
			Id: "organize", Options: map[string]any{"excludeByName": map[string]bool{"Time": true}},
		})
	case heat:
		return heatmap.NewPanelBuilder().Calculate(false).YAxis(heatmap.NewYAxisConfigBuilder().Unit(p.unit)).
			Color(heatmap.NewHeatmapColorOptionsBuilder().Mode(heatmap.HeatmapColorModeScheme).Scheme("Oranges").Fill("dark-orange").Exponent(0.5).Steps(64)).
			ShowValue(common.VisibilityModeNever).Tooltip(heatmap.NewHeatmapTooltipBuilder().Mode(common.TooltipDisplayModeSingle))
	case words:
		return text.NewPanelBuilder().Mode(text.TextModeMarkdown).Content(p.help).Transparent(true)
	case graph, areas:
	}
	lines := timeseries.NewPanelBuilder().ShowPoints(common.VisibilityModeNever).Min(0).
		Legend(common.NewVizLegendOptionsBuilder().ShowLegend(true).DisplayMode(common.LegendDisplayModeTable).
			Placement(common.LegendPlacementBottom).Calcs([]string{"lastNotNull", "max"}).SortBy("Max").SortDesc(true)).
		Tooltip(common.NewVizTooltipOptionsBuilder().Mode(common.TooltipDisplayModeMulti).Sort(common.SortOrderDescending))
	if p.kind == areas {
		lines.FillOpacity(40).Stacking(common.NewStackingConfigBuilder().Mode(common.StackingModeNormal))
	}
	if p.bad != 0 {
		lines.ThresholdsStyle(common.NewGraphThresholdsStyleConfigBuilder().Mode(common.GraphThresholdsStyleModeDashed))
	}
	return lines
}

// defaults sets how values are shown.
func (p *panel) defaults(c *dashboard.FieldConfig) {
	c.Unit = new(cmp.Or(p.unit, "none"))
	if p.kind == graph || p.kind == areas {
		c.Color = &dashboard.FieldColor{Mode: dashboard.FieldColorModeIdPaletteClassic}
	}
	if p.none != "" {
		c.NoValue = &p.none
	}
	if len(p.states) > 0 {
		results := make(map[string]dashboard.ValueMappingResult)
		for value, state := range p.states {
			results[value] = dashboard.ValueMappingResult{Text: &state}
		}
		c.Mappings = []dashboard.ValueMapping{{ValueMap: &dashboard.ValueMap{Type: dashboard.MappingTypeValueToText, Options: results}}}
	}
	if p.bad == 0 {
		return
	}
	steps := []dashboard.Threshold{{Color: "green"}, {Value: &p.warn, Color: "yellow"}, {Value: &p.bad, Color: "red"}}
	if p.below {
		steps = []dashboard.Threshold{{Color: "red"}, {Value: &p.bad, Color: "yellow"}, {Value: &p.warn, Color: "green"}}
	}
	if p.warn == p.bad {
		steps = []dashboard.Threshold{{Color: "green"}, {Value: &p.bad, Color: "red"}}
	}
	if p.kind == number {
		c.Color = &dashboard.FieldColor{Mode: dashboard.FieldColorModeIdThresholds}
	}
	c.Thresholds = &dashboard.ThresholdsConfig{Mode: dashboard.ThresholdsModeAbsolute, Steps: steps}
}

// datasource is the one that was chosen.
func datasource() *common.DataSourceRef {
	kind, uid := "prometheus", "${datasource}"
	return &common.DataSourceRef{Type: &kind, Uid: &uid}
}

// link leads to a section of a page below docs.
func link(title, page string) dashboard.DashboardLink {
	return dashboard.DashboardLink{
		Title: title, Type: dashboard.DashboardLinkTypeLink, Icon: "external link", Url: new(docs + page), Tags: []string{}, TargetBlank: true,
	}
}
