// Command carve-scheduler is Kubernetes' scheduler with Carve's plugin.
package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	"k8s.io/kubernetes/cmd/kube-scheduler/app"

	"github.com/carve-csi/carve/pkg/scheduler/plugin"
)

// version is Carve's, set by the linker. --version reports Kubernetes'.
var version = "unknown"

func main() {
	command := app.NewSchedulerCommand(app.WithPlugin(plugin.Name, plugin.New))
	command.Use = "carve-scheduler"
	command.AddCommand(&cobra.Command{
		Use: "version", Short: "Print Carve's version",
		Run: func(command *cobra.Command, _ []string) { fmt.Fprintln(command.OutOrStdout(), version) },
	})
	os.Exit(cli.Run(command))
}
