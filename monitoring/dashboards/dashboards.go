// Package dashboards makes Carve's Grafana dashboards with Grafana's own library: what each
// panel asks is written here, where it stands follows from its size.
package dashboards

import (
	"encoding/json"
	"fmt"

	"github.com/grafana/grafana-foundation-sdk/go/cog"
	"github.com/grafana/grafana-foundation-sdk/go/common"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
	"github.com/grafana/grafana-foundation-sdk/go/prometheus"
	"github.com/grafana/grafana-foundation-sdk/go/stat"
	"github.com/grafana/grafana-foundation-sdk/go/table"
	"github.com/grafana/grafana-foundation-sdk/go/timeseries"
)

// Dir is where the dashboards are, below the source tree's root; each is NAME.json.
const Dir = "deploy/components/grafana-dashboards"

// Width is how many columns Grafana's grid has.
const Width = 24

// Dashboard is one dashboard.
type Dashboard struct {
	// Name is that of its file, and with "carve-" before it its uid.
	Name, Title, Description string
	// Variables are chosen at the top, besides the data source.
	Variables []Variable
	Rows      []Row
}

// Variable is a choice of values of a label; all are chosen at first.
type Variable struct {
	Name, Label string
	// Of is a metric that has the label, Key the label.
	Of, Key string
}

// Row is a heading with panels below it.
type Row struct {
	Title  string
	Panels []Panel
}

// Kind is how a panel shows what it asks.
type Kind int

// Kinds of panels.
const (
	// Graph shows values over time, Number the last ones, and Table the labels of the last ones.
	Graph Kind = iota
	Number
	Table
)

// Panel is one picture.
type Panel struct {
	Title, Description string
	Kind               Kind
	// Unit is Grafana's: bytes, s, percentunit, ops; empty for numbers.
	Unit string
	// Columns and Height are its size in the grid; zero means a third of the width, and 8.
	Columns, Height uint32
	// Bad is from where on a value is shown in red; zero means nowhere.
	Bad     float64
	Queries []Query
}

// Query is a question to Prometheus.
type Query struct {
	Expr string
	// Legend names the series by their labels, such as {{node}}.
	Legend string
}

func pointer[T any](v T) *T { return &v }

var source = common.DataSourceRef{Type: pointer("prometheus"), Uid: pointer("${datasource}")}

// JSON returns the dashboard as Grafana reads it.
func (d Dashboard) JSON() ([]byte, error) {
	//nolint:staticcheck // SA1019: its successor is read by Grafana 12 and later only
	b := dashboard.NewDashboardBuilder(d.Title).Uid("carve-"+d.Name).Description(d.Description).
		Tags([]string{"carve"}).Editable().Timezone("browser").Time("now-3h", "now").Refresh("1m").Tooltip(dashboard.DashboardCursorSyncCrosshair).
		Link(dashboard.NewDashboardLinkBuilder("Carve").Type(dashboard.DashboardLinkTypeDashboards).Tags([]string{"carve"}).AsDropdown(true).KeepTime(true)).
		WithVariable(dashboard.NewDatasourceVariableBuilder("datasource").Label("Data source").Type("prometheus"))
	for _, v := range d.Variables {
		all := fmt.Sprintf("label_values(%s, %s)", v.Of, v.Key)
		b.WithVariable(dashboard.NewQueryVariableBuilder(v.Name).Label(v.Label).Datasource(source).Query(dashboard.StringOrMap{String: &all}).
			Refresh(dashboard.VariableRefreshOnTimeRangeChanged).Sort(dashboard.VariableSortNaturalAsc).Multi(true).IncludeAll(true).AllValue(".*"))
	}
	id := uint32(0)
	for _, r := range d.Rows {
		id++
		b.WithRow(dashboard.NewRowBuilder(r.Title).Id(id))
		for _, p := range r.Panels {
			id++
			b.WithPanel(p.build(id))
		}
	}
	made, err := b.Build()
	if err != nil {
		return nil, fmt.Errorf("make the dashboard %s: %w", d.Name, err)
	}
	text, err := json.MarshalIndent(made, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("make the dashboard %s: %w", d.Name, err)
	}
	return append(text, '\n'), nil
}

func (p Panel) size() (columns, height uint32) {
	columns, height = p.Columns, p.Height
	if columns == 0 {
		columns = Width / 3
	}
	if height == 0 {
		height = 8
	}
	return columns, height
}

// thresholds colour values from Bad on.
func (p Panel) thresholds() cog.Builder[dashboard.ThresholdsConfig] {
	steps := []dashboard.Threshold{{Color: "green"}}
	if p.Bad > 0 {
		steps = append(steps, dashboard.Threshold{Value: &p.Bad, Color: "red"})
	}
	return dashboard.NewThresholdsConfigBuilder().Mode(dashboard.ThresholdsModeAbsolute).Steps(steps)
}

func (p Panel) build(id uint32) cog.Builder[dashboard.Panel] {
	columns, height := p.size()
	switch p.Kind {
	case Number:
		b := stat.NewPanelBuilder().Id(id).Title(p.Title).Description(p.Description).Datasource(source).Unit(p.Unit).Span(columns).Height(height).
			Thresholds(p.thresholds()).NoValue("none").
			ReduceOptions(common.NewReduceDataOptionsBuilder().Calcs([]string{"lastNotNull"}))
		for i, q := range p.Queries {
			b.WithTarget(q.build(i).Instant())
		}
		return b
	case Table:
		b := table.NewPanelBuilder().Id(id).Title(p.Title).Description(p.Description).Datasource(source).Unit(p.Unit).Span(columns).Height(height).
			NoValue("none").
			WithTransformation(dashboard.DataTransformerConfig{Id: "organize", Options: map[string]any{
				"excludeByName": map[string]bool{"Time": true, "__name__": true, "container": true, "endpoint": true, "instance": true, "job": true, "namespace": true, "pod": true},
			}})
		for i, q := range p.Queries {
			b.WithTarget(q.build(i).Instant().Format(prometheus.PromQueryFormatTable))
		}
		return b
	default:
		b := timeseries.NewPanelBuilder().Id(id).Title(p.Title).Description(p.Description).Datasource(source).Unit(p.Unit).Span(columns).Height(height).
			Min(0).FillOpacity(10).ShowPoints(common.VisibilityModeNever).
			Legend(common.NewVizLegendOptionsBuilder().DisplayMode(common.LegendDisplayModeList).Placement(common.LegendPlacementBottom).ShowLegend(true)).
			Tooltip(common.NewVizTooltipOptionsBuilder().Mode(common.TooltipDisplayModeMulti).Sort(common.SortOrderDescending))
		if p.Bad > 0 {
			b.Thresholds(p.thresholds()).ThresholdsStyle(common.NewGraphThresholdsStyleConfigBuilder().Mode(common.GraphThresholdsStyleModeLine))
		}
		for i, q := range p.Queries {
			b.WithTarget(q.build(i).Range())
		}
		return b
	}
}

func (q Query) build(i int) *prometheus.DataqueryBuilder {
	return prometheus.NewDataqueryBuilder().RefId(string(rune('A' + i))).Datasource(source).Expr(q.Expr).LegendFormat(q.Legend)
}
