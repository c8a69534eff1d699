package dashboards

import "fmt"

// All are Carve's dashboards.
func All() []Dashboard { return []Dashboard{fleet(), node(), volumes(), creation()} }

// quantiles asks for the median and the slow end of a histogram, by labels.
func quantiles(histogram, selector, by, legend string) []Query {
	if by != "" {
		by = ", " + by
	}
	var queries []Query
	for _, q := range []struct{ value, name string }{{"0.5", "p50"}, {"0.99", "p99"}} {
		queries = append(queries, Query{
			fmt.Sprintf("histogram_quantile(%s, sum by (le%s) (rate(%s_bucket{%s}[$__rate_interval])))", q.value, by, histogram, selector),
			q.name + legend,
		})
	}
	return queries
}

var nodeVariable = Variable{Name: "node", Label: "Node", Of: "carve_lvmd_config_current", Key: "node"}

func fleet() Dashboard {
	number := func(title, expr string, bad float64) Panel {
		return Panel{Title: title, Kind: Number, Bad: bad, Columns: 4, Height: 4, Queries: []Query{{Expr: expr}}}
	}
	return Dashboard{
		Name: "fleet", Title: "Carve / Fleet", Description: "All nodes: what they offer, what fails, and what the controller does.",
		Rows: []Row{
			{"Now", []Panel{
				number("Nodes connected", `max(carve_controller_connected_nodes)`, 0),
				number("Nodes held back", `sum(max by (cause) (carve_controller_held_back_nodes))`, 1),
				number("Controllers that lead", `sum(carve_controller_leading)`, 2),
				number("Volumes", `sum(carve_lvmd_volumes{state="ready"})`, 0),
				number("Volumes missing or unhealthy", `(sum(carve_controller_missing_volumes) or vector(0)) + (sum(carve_lvmd_unhealthy_volumes) or vector(0)) + (sum(carve_node_volume_conditions) or vector(0))`, 1),
				number("Orphans", `sum(carve_controller_audited_volumes{standing="orphan"})`, 1),
				{Title: "Alerts that fire", Kind: Table, Columns: Width, Height: 6, Queries: []Query{
					{Expr: `sum by (alertname, severity, node, class, group, condition) (ALERTS{alertname=~"Carve.*",alertstate="firing"})`},
				}},
			}},
			{"Space", []Panel{
				{Title: "Size and free space by device class", Unit: "bytes", Queries: []Query{
					{`sum by (class) (carve_lvmd_class_total_bytes)`, "{{class}} size"},
					{`sum by (class) (carve_lvmd_class_available_bytes)`, "{{class}} free"},
				}},
				{Title: "Share of a node's class that is used", Description: "The ten fullest.", Unit: "percentunit", Bad: 0.95, Queries: []Query{
					{`topk(10, 1 - carve_lvmd_class_available_bytes / (carve_lvmd_class_total_bytes > 0))`, "{{node}} {{class}}"},
				}},
				{Title: "Largest volume that can be made", Description: "The ten nodes with the least.", Unit: "bytes", Queries: []Query{
					{`bottomk(10, max by (node, class) (carve_lvmd_class_maximum_volume_bytes))`, "{{node}} {{class}}"},
				}},
			}},
			{"Claims", []Panel{
				{Title: "Attempts to provision, by result", Unit: "ops", Queries: []Query{
					{`sum by (result) (rate(carve_controller_claims_total[$__rate_interval]))`, "{{result}}"},
				}},
				{Title: "From the selected node to the bound claim", Unit: "s", Queries: quantiles("carve_controller_bound_seconds", "", "", "")},
				{Title: "Volumes deleted, by result", Unit: "ops", Queries: []Query{
					{`sum by (result) (rate(carve_controller_deletes_total[$__rate_interval]))`, "{{result}}"},
				}},
				{Title: "Requests to the API server", Unit: "reqps", Queries: []Query{
					{`sum by (method, code) (rate(carve_controller_api_requests_total[$__rate_interval]))`, "{{method}} {{code}}"},
				}},
				{Title: "Writes of capacity", Unit: "ops", Queries: []Query{
					{`sum by (operation) (rate(carve_controller_capacity_writes_total[$__rate_interval]))`, "{{operation}}"},
				}},
				{Title: "Claims under way", Description: "With a selected node that does not report their volume yet.", Queries: []Query{
					{`max(carve_controller_reservations)`, "claims"},
				}},
			}},
		},
	}
}

func node() Dashboard {
	const on = `node=~"$node"`
	return Dashboard{
		Name: "node", Title: "Carve / Node", Description: "One node, or some: disks, LVM, and the node plugin.",
		Variables: []Variable{nodeVariable},
		Rows: []Row{
			{"Space", []Panel{
				{Title: "Volume groups", Unit: "bytes", Queries: []Query{
					{`carve_lvmd_group_total_bytes{` + on + `}`, "{{node}} {{group}} size"},
					{`carve_lvmd_group_free_bytes{` + on + `}`, "{{node}} {{group}} free"},
				}},
				{Title: "Free space of device classes", Unit: "bytes", Queries: []Query{
					{`carve_lvmd_class_available_bytes{` + on + `}`, "{{node}} {{class}} in sum"},
					{`carve_lvmd_class_maximum_volume_bytes{` + on + `}`, "{{node}} {{class}} at once"},
				}},
				{Title: "Volumes by state", Queries: []Query{
					{`sum by (node, class, state) (carve_lvmd_volumes{` + on + `})`, "{{node}} {{class}} {{state}}"},
				}},
				{Title: "Still to be wiped", Unit: "bytes", Queries: []Query{{`carve_lvmd_wipe_backlog_bytes{` + on + `}`, "{{node}} {{group}}"}}},
				{Title: "Thin pools", Unit: "percent", Bad: 85, Queries: []Query{
					{`carve_lvmd_thin_data_percent{` + on + `}`, "{{node}} {{pool}} data"},
					{`carve_lvmd_thin_metadata_percent{` + on + `}`, "{{node}} {{pool}} metadata"},
				}},
				{Title: "LVM's metadata area", Unit: "percentunit", Bad: 0.9, Queries: []Query{
					{`carve_lvmd_group_metadata_bytes{` + on + `} / (carve_lvmd_group_metadata_limit_bytes{` + on + `} > 0)`, "{{node}} {{group}}"},
				}},
			}},
			{"Trouble", []Panel{
				{Title: "Conditions of device classes", Kind: Table, Queries: []Query{{Expr: `carve_lvmd_class_condition{` + on + `}`}}},
				{Title: "Volumes with a condition", Kind: Table, Queries: []Query{{Expr: `carve_lvmd_unhealthy_volumes{` + on + `}`}}},
				{Title: "Devices that are not used", Kind: Table, Queries: []Query{{Expr: `carve_lvmd_device_refused{` + on + `}`}}},
				{Title: "Waiting in the kernel for a disk", Bad: 1, Queries: []Query{
					{`carve_lvmd_stuck{` + on + `}`, "{{node}} lvmd"},
					{`carve_node_stuck{` + on + `}`, "{{node}} node plugin"},
				}},
				{Title: "Mounts that a previous run left", Unit: "ops", Queries: []Query{
					{`sum by (node, kind, result) (rate(carve_node_leaked_mounts_total{` + on + `}[$__rate_interval]))`, "{{node}} {{kind}} {{result}}"},
				}},
				{Title: "Is it in order?", Description: "1 while LVM answers, the configuration is in force, and the kubelet knows the plugin.", Queries: []Query{
					{`carve_lvmd_lvm_responding{` + on + `}`, "{{node}} {{group}} LVM answers"},
					{`carve_lvmd_config_current{` + on + `}`, "{{node}} configuration"},
					{`carve_node_registered{` + on + `}`, "{{node}} registered"},
				}},
			}},
			{"LVM and calls", []Panel{
				{Title: "LVM commands", Unit: "ops", Queries: []Query{
					{`sum by (command, result) (rate(carve_lvmd_lvm_command_seconds_count{` + on + `}[$__rate_interval]))`, "{{command}} {{result}}"},
				}},
				{Title: "Duration of LVM commands", Unit: "s", Queries: quantiles("carve_lvmd_lvm_command_seconds", on, "command", " {{command}}")},
				{Title: "Operations that wait for LVM", Queries: []Query{{`carve_lvmd_queue_depth{` + on + `}`, "{{node}} {{group}}"}}},
				{Title: "Calls of the kubelet", Unit: "ops", Queries: []Query{
					{`sum by (method_name, grpc_status_code) (rate(csi_plugin_operations_seconds_count{driver_name="carve.csi.local",container="node",` + on + `}[$__rate_interval]))`, "{{method_name}} {{grpc_status_code}}"},
				}},
				{Title: "Duration of the kubelet's calls", Unit: "s",
					Queries: quantiles("csi_plugin_operations_seconds", `driver_name="carve.csi.local",container="node",`+on, "method_name", " {{method_name}}")},
				{Title: "Checks of file systems", Unit: "ops", Queries: []Query{
					{`sum by (type, result) (rate(carve_node_filesystem_checks_total{` + on + `}[$__rate_interval]))`, "{{type}} {{result}}"},
				}},
			}},
		},
	}
}

func volumes() Dashboard {
	const chosen = `node=~"$node",owner_namespace=~"$namespace"`
	const info = `carve_lvmd_volume_info{` + chosen + `}`
	// Those without a device, as while a disk is missing, would be one group of many series, which Prometheus refuses.
	const devices = `carve_lvmd_volume_info{device!="",` + chosen + `}`
	const owner = "owner_namespace, persistentvolumeclaim, inline_pod"
	// io asks of the kernel's counters of the device below each volume.
	io := func(counter, what string) Query {
		return Query{`sum by (node, ` + owner + `) (rate(` + counter + `[$__rate_interval]) * on (node, device) group_left (` + owner + `) ` + devices + `)`,
			"{{owner_namespace}}/{{persistentvolumeclaim}}{{inline_pod}} " + what}
	}
	// used asks the kubelet, whose names of the labels are others.
	used := func(of string) string {
		return `max by (owner_namespace, persistentvolumeclaim) (label_replace(kubelet_volume_stats_` + of + `, "owner_namespace", "$1", "namespace", "(.+)"))` +
			` and on (owner_namespace, persistentvolumeclaim) ` + info
	}
	return Dashboard{
		Name: "volumes", Title: "Carve / Volumes",
		Description: "Each volume with its claim, node and device. What is read and written comes from node_exporter, scraped with the label node; how full it is from the kubelet.",
		Variables:   []Variable{nodeVariable, {Name: "namespace", Label: "Namespace", Of: "carve_lvmd_volume_info", Key: "owner_namespace"}},
		Rows: []Row{
			{"Volumes", []Panel{
				{Title: "Volumes", Kind: Table, Unit: "bytes", Columns: Width, Height: 10, Queries: []Query{
					{Expr: `sum by (node, volume) (carve_lvmd_volume_bytes{node=~"$node"}) * on (node, volume) group_left (persistentvolume, ` + owner + `, class, group, device) ` + info},
				}},
				{Title: "Fullest file systems", Description: "As the kubelet measures them; inline volumes are not among them.", Unit: "percentunit", Bad: 0.9, Columns: 12, Queries: []Query{
					{`topk(20, (` + used("used_bytes") + `) / (` + used("capacity_bytes") + `))`, "{{owner_namespace}}/{{persistentvolumeclaim}}"},
				}},
				{Title: "Space by namespace", Unit: "bytes", Columns: 12, Queries: []Query{
					{`sum by (owner_namespace) (sum by (node, volume) (carve_lvmd_volume_bytes{node=~"$node"}) * on (node, volume) group_left (owner_namespace) ` + info + `)`, "{{owner_namespace}}"},
				}},
			}},
			{"Input and output", []Panel{
				{Title: "Bytes", Unit: "Bps", Columns: 12, Queries: []Query{io("node_disk_read_bytes_total", "read"), io("node_disk_written_bytes_total", "written")}},
				{Title: "Operations", Unit: "iops", Columns: 12, Queries: []Query{io("node_disk_reads_completed_total", "reads"), io("node_disk_writes_completed_total", "writes")}},
			}},
		},
	}
}

func creation() Dashboard {
	call := func(method string) string { return `driver_name="carve.csi.local",method_name="` + method + `"` }
	wide := func(title, description, unit string, queries []Query) Panel {
		return Panel{Title: title, Description: description, Unit: unit, Columns: 12, Height: 7, Queries: queries}
	}
	return Dashboard{
		Name: "creation", Title: "Carve / Creation step by step",
		Description: "Where the time goes between the scheduler's choice of a node and a mounted volume. Each step contains those below it, down to LVM; staging and publishing follow.",
		Variables:   []Variable{nodeVariable},
		Rows: []Row{
			{"1. The claim, in the controller", []Panel{
				wide("From the selected node to the bound claim", "", "s", quantiles("carve_controller_bound_seconds", "", "", "")),
				wide("Attempts, by result", "", "ops", []Query{{`sum by (result) (rate(carve_controller_claims_total[$__rate_interval]))`, "{{result}}"}}),
			}},
			{"2. The call to the node", []Panel{
				wide("CreateVolume, as the controller sees it", "", "s", quantiles("csi_sidecar_operations_seconds", call("/csi.v1.Controller/CreateVolume"), "", "")),
				wide("CreateVolume, by what came of it", "", "ops", []Query{
					{`sum by (grpc_status_code) (rate(csi_sidecar_operations_seconds_count{` + call("/csi.v1.Controller/CreateVolume") + `}[$__rate_interval]))`, "{{grpc_status_code}}"},
				}),
			}},
			{"3. On the node, in lvmd", []Panel{
				wide("CreateVolume, as lvmd sees it", "The whole operation: waiting for LVM, lvcreate, clearing and formatting.", "s",
					quantiles("carve_lvmd_rpc_seconds", `method="CreateVolume",node=~"$node"`, "", "")),
				wide("Operations that wait for LVM", "", "", []Query{{`sum by (node, group) (carve_lvmd_queue_depth{node=~"$node"})`, "{{node}} {{group}}"}}),
			}},
			{"4. LVM", []Panel{
				wide("lvcreate", "", "s", quantiles("carve_lvmd_lvm_command_seconds", `command="lvcreate",node=~"$node"`, "", "")),
				wide("lvcreate, by result", "", "ops", []Query{
					{`sum by (result) (rate(carve_lvmd_lvm_command_seconds_count{command="lvcreate",node=~"$node"}[$__rate_interval]))`, "{{result}}"},
				}),
			}},
			{"5. The Pod starts: staged and published", []Panel{
				wide("NodeStageVolume", "The file system is checked and mounted.", "s",
					quantiles("csi_plugin_operations_seconds", call("/csi.v1.Node/NodeStageVolume")+`,node=~"$node"`, "", "")),
				wide("NodePublishVolume", "", "s", quantiles("csi_plugin_operations_seconds", call("/csi.v1.Node/NodePublishVolume")+`,node=~"$node"`, "", "")),
			}},
		},
	}
}
