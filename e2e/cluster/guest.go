package cluster

import (
	"fmt"
	"strings"

	"github.com/carve-csi/carve/e2e/controlplane"
	"github.com/carve-csi/carve/e2e/image"
	"github.com/carve-csi/carve/e2e/vm/guest"
)

// modules are those that something needs before the kernel loads it by itself, or
// that cost time when a test first needs them.
var modules = []string{
	"dm_mod", "loop", "br_netfilter",
}

// Paths on a node.
const (
	toolsFolder = "/opt/kubernetes"
	// The folder of what the harness puts there once the control plane knows the node.
	credentials       = "/run/kubernetes"
	clientAuthority   = credentials + "/ca.crt"
	kubeletKubeconfig = credentials + "/kubelet.kubeconfig"
	containerdSocket  = "/run/containerd/containerd.sock"
	serviceLogs       = "/var/log/services"
)

// containerdConfig has containers run by crun. It does what runc does, and is called about
// ten times for each Pod: a Go program takes most of a second to start on an emulated
// node, one in C next to nothing.
const containerdConfig = `version = 2
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "` + image.PauseName + `"
  disable_apparmor = true
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
    SystemdCgroup = false
    BinaryName = "/usr/bin/crun"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "/etc/cni/net.d"
`

func containerdFile() guest.File {
	return guest.File{Path: "/etc/containerd/config.toml", Mode: 0o644, Content: []byte(containerdConfig)}
}

// lazyCollector has Go programs collect garbage less often: a node has more memory
// to spare than time.
const lazyCollector = "GOGC=300"

func containerdService() guest.Service {
	return guest.Service{
		Name: "containerd", Argv: []string{"containerd", "--log-level=warn"}, Env: []string{lazyCollector},
		Log: serviceLogs + "/containerd.log", ReadyPath: containerdSocket,
	}
}

// stateSteps mount the state disk and lay its folders over the root's. What is
// there at first is what Debian's packages have there.
func stateSteps(device string) []guest.Step {
	steps := []guest.Step{
		{Name: "make the state's mount point", Argv: []string{"mkdir", "-p", "/state"}},
		{Name: "mount the state", Argv: []string{"mount", "-t", "ext4", "-o", "noatime", device, "/state"}},
	}
	for _, folder := range []string{"lib", "log"} {
		kept, target := "/state/"+folder, "/var/"+folder
		steps = append(steps,
			guest.Step{Name: "fill " + kept, Argv: []string{"cp", "-a", target, kept}, Unless: []string{"test", "-d", kept}},
			guest.Step{Name: "keep " + target, Argv: []string{"mount", "--bind", kept, target}})
	}
	return steps
}

// processorFile has what a kubelet wants to know of the processor, which a kernel in user
// mode does not say: its speed, see proc(5).
const processorFile = "/run/cpuinfo"

// userModeSteps have a kubelet run on a kernel in user mode.
func userModeSteps() []guest.Step {
	return []guest.Step{{Name: "describe the processor", Argv: []string{"mount", "--bind", processorFile, "/proc/cpuinfo"}}}
}

func (n node) steps() []guest.Step {
	steps := stateSteps("/dev/vdd")
	steps = append(steps,
		guest.Step{Name: "make the tools' mount point", Argv: []string{"mkdir", "-p", toolsFolder}},
		guest.Step{Name: "mount the tools", Argv: []string{"mount", "-t", "ext4", "-o", "ro", "/dev/vde", toolsFolder}},
		guest.Step{Name: "set the network's switches", Argv: []string{
			"sysctl", "-q", "-w", "net.ipv4.ip_forward=1", "net.bridge.bridge-nf-call-iptables=1",
			"fs.inotify.max_user_instances=8192", "fs.inotify.max_user_watches=524288", "vm.overcommit_memory=1",
			"kernel.panic=10", "kernel.panic_on_oops=1",
		}},
		guest.Step{
			Name: "make the volume group carve", Argv: []string{"vgcreate", "-q", "carve", "/dev/vdb"},
			Unless: []string{"vgs", "carve"},
		})
	if !n.pmem {
		return steps
	}
	// DAX mappings can only use huge pages where everything is aligned to 2 MiB.
	return append(steps, guest.Step{
		Name:   "make the volume group carve-pmem",
		Argv:   []string{"vgcreate", "-q", "--dataalignment", "2m", "--physicalextentsize", "2m", "carve-pmem", "/dev/pmem0"},
		Unless: []string{"vgs", "carve-pmem"},
	})
}

// files are those of the node's configuration. There is no udevd; LVM is configured for that.
func (n node) files() []guest.File {
	file := func(path, content string) guest.File {
		return guest.File{Path: path, Mode: 0o644, Content: []byte(content)}
	}
	return []guest.File{
		containerdFile(),
		file(processorFile, "processor\t: 0\nvendor_id\t: User Mode Linux\ncpu MHz\t\t: 1000.000\nphysical id\t: 0\ncore id\t\t: 0\n\n"),
		file("/etc/lvm/lvmlocal.conf", lvmConfig),
		file("/etc/cni/net.d/10-bridge.conflist", fmt.Sprintf(networkConfig, n.podSubnet())),
		file("/etc/kubernetes/kubelet.yaml", kubeletConfig()),
		file("/etc/resolv.conf", "search .\n"),
		file("/etc/hosts", fmt.Sprintf("127.0.0.1 localhost\n%s %s\n", n.address(), n.name())),
		file("/etc/crictl.yaml", "runtime-endpoint: unix://"+containerdSocket+"\n"),
		file("/etc/profile.d/kubernetes.sh", "export PATH=$PATH:"+toolsFolder+"\n"),
	}
}

const lvmConfig = `activation {
	udev_sync = 0
	udev_rules = 0
}
devices {
	obtain_device_list_from_udev = 0
	external_device_info_source = "none"
}
`

const networkConfig = `{
  "cniVersion": "1.0.0",
  "name": "pods",
  "plugins": [
    {
      "type": "bridge", "bridge": "cni0", "isGateway": true, "hairpinMode": true,
      "ipam": {"type": "host-local", "ranges": [[{"subnet": %q}]], "routes": [{"dst": "0.0.0.0/0"}]}
    },
    {"type": "portmap", "capabilities": {"portMappings": true}}
  ]
}
`

func kubeletConfig() string {
	return `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
containerRuntimeEndpoint: unix://` + containerdSocket + `
cgroupDriver: cgroupfs
clusterDomain: ` + controlplane.ClusterDomain + `
clusterDNS: ["` + controlplane.ClusterDNS + `"]
resolvConf: /etc/resolv.conf
authentication:
  anonymous: {enabled: false}
  webhook: {enabled: true}
  x509: {clientCAFile: ` + clientAuthority + `}
authorization: {mode: Webhook}
failSwapOn: false
registryPullQPS: 0
# A container that a test killed often starts again soon.
crashLoopBackOff: {maxContainerRestartPeriod: 5s}
syncFrequency: 10s
# An emulated node is slow, not ill.
runtimeRequestTimeout: 5m
evictionHard: {memory.available: 50Mi, nodefs.available: 2%, imagefs.available: 2%}
imageGCHighThresholdPercent: 98
imageGCLowThresholdPercent: 97
`
}

// services are started as soon as they can be: containerd at once, the others when
// the control plane knows the node and the harness has put their credentials there.
func (n node) services() []guest.Service {
	path := "PATH=" + strings.Join([]string{toolsFolder, "/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"}, ":")
	return []guest.Service{
		containerdService(),
		{
			Name: "kubelet",
			Argv: []string{
				toolsFolder + "/kubelet", "--config=/etc/kubernetes/kubelet.yaml", "--kubeconfig=" + kubeletKubeconfig,
				"--root-dir=" + n.kubeletDir, "--hostname-override=" + n.name(), "--node-ip=" + n.address().String(), "--housekeeping-interval=30s",
			},
			Env: []string{path, lazyCollector}, Log: serviceLogs + "/kubelet.log", StartPath: kubeletKubeconfig,
		},
	}
}
