// Package guest is the contract between the host and the first process of a
// test machine (cmd/nodeinit): one JSON document that says what the machine is
// to be. QEMU hands it over as a firmware configuration item, a kernel in user mode reads
// it from the host, so that neither a disk nor a network has to be there first.
//
// The order in which a machine comes up is fixed: host name and loopback,
// modules, files, network, steps (which may make and mount file systems), files
// marked late, another first process, services. Every list is worked through in its order. A step that
// fails ends the sequence and is reported by the agent's status; the agent runs
// all the same, so that one can look.
package guest

// FirmwareItem is the name of the firmware configuration item with the JSON of
// a Config.
const FirmwareItem = "opt/carve/config"

// AgentPort is the name of the virtio serial port that the agent serves.
const AgentPort = "carve.agent"

// ProbeArgument on the kernel's command line makes the machine print ProbeReply
// on its console and power off at once.
const (
	ProbeArgument = "carve.probe"
	ProbeReply    = "carve: the probe booted"
)

// What replaces the firmware and the port on the command line of a kernel that runs as a
// program on the host.
const (
	// FolderArgument names the host's folder that has the configuration in ConfigFile.
	FolderArgument = "carve.folder"
	ConfigFile     = "guest.json"
	// ModulesArgument names the host's folder with the kernel's modules.
	ModulesArgument = "carve.modules"
	// AgentTerminal is the terminal that the agent serves. Greeting is what the agent
	// writes once the terminal passes on all bytes as they are.
	AgentTerminal = "/dev/ttyS0"
	Greeting      = "carve: the agent listens\n"
)

// Config says what a machine is to be.
type Config struct {
	Hostname string `json:"hostname"`
	// Modules are kernel modules, loaded with what they need. A name may carry
	// parameters after a space.
	Modules []string `json:"modules,omitempty"`
	Network *Network `json:"network,omitempty"`
	Files   []File   `json:"files,omitempty"`
	Steps   []Step   `json:"steps,omitempty"`
	// Services are started in their order and kept running.
	Services []Service `json:"services,omitempty"`
	// Init is a program that takes the place of the first process once the steps have
	// run. The agent goes on beside it. Empty means none.
	Init []string `json:"init,omitempty"`
}

// Network is the set-up of the machine's one network card.
type Network struct {
	// Address in CIDR notation, such as "10.80.0.11/24".
	Address string `json:"address"`
	// Gateway is the default route's next hop.
	Gateway string  `json:"gateway,omitempty"`
	Routes  []Route `json:"routes,omitempty"`
}

// Route sends a destination (CIDR) through a next hop.
type Route struct {
	Destination string `json:"destination"`
	Via         string `json:"via"`
}

// File is written with its parents before the steps or, when Late, after them.
type File struct {
	Path    string `json:"path"`
	Mode    uint32 `json:"mode"`
	Content []byte `json:"content"`
	// Late is for files on file systems that a step mounts.
	Late bool `json:"late,omitempty"`
}

// Step is one command of the machine's set-up.
type Step struct {
	// Name appears in the console log and in errors.
	Name string   `json:"name"`
	Argv []string `json:"argv"`
	// Unless names a command; the step is left out where it exits 0.
	Unless []string `json:"unless,omitempty"`
}

// Service is a process that is started again, after a second, whenever it ends.
type Service struct {
	Name string   `json:"name"`
	Argv []string `json:"argv"`
	Env  []string `json:"env,omitempty"`
	// Log is the file that takes its output, appended to.
	Log string `json:"log"`
	// StartPath is a path that must exist before the service is started for the
	// first time; the next services do not wait with it. Empty means to start.
	StartPath string `json:"startPath,omitempty"`
	// ReadyPath is a path (of a socket, say) that must exist before the next
	// service is started. Empty means not to wait.
	ReadyPath string `json:"readyPath,omitempty"`
}

// Status is what the agent reports of the set-up.
type Status struct {
	// Ready is true once all steps have run and all services were started.
	Ready bool `json:"ready"`
	// Error says what ended the set-up; empty while it runs and when it is done.
	Error string `json:"error,omitempty"`
	// Phase says what runs now, for progress lines.
	Phase string `json:"phase"`
	// UptimeSeconds is the time since the kernel started.
	UptimeSeconds float64 `json:"uptimeSeconds"`
}
