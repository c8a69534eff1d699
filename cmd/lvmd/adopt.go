package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
)

func (c *client) adopt() *cobra.Command {
	r := &lvmdv1.AdoptVolumeRequest{Owner: &lvmdv1.Owner{}}
	var block bool
	command := &cobra.Command{
		Use: "adopt LV NAME", Short: "Make the logical volume LV, which something else made, a volume called NAME, with what it holds", Args: cobra.ExactArgs(2),
		Long: "Makes a logical volume that another driver or an administrator made a volume of Carve, in place: it is tagged and renamed, and " +
			"nothing is written to it. It must not be open or mounted. Until confirm-adoption, revert-adoption gives it its former name back.",
		RunE: func(cmd *cobra.Command, args []string) error {
			r.LvName, r.Name, r.Mode = args[0], args[1], lvmdv1.VolumeMode_VOLUME_MODE_FILESYSTEM
			if block {
				r.Mode = lvmdv1.VolumeMode_VOLUME_MODE_BLOCK
			}
			return c.call(cmd.Context(), func(ctx context.Context, l lvmdv1.LVMDClient) error {
				resp, err := l.AdoptVolume(ctx, r)
				if err != nil {
					return err
				}
				return c.printVolumes(cmd.OutOrStdout(), resp.GetVolume())
			})
		},
	}
	flags := command.Flags()
	flags.StringVar(&r.DeviceClass, "class", "", "device class; empty means the default")
	flags.StringVar(&r.VgName, "group", "", "volume group; empty means the one of the class that has the logical volume")
	flags.BoolVar(&block, "block", false, "adopt it as a raw volume, whatever it holds")
	flags.BoolVar(&r.DryRun, "dry-run", false, "only check whether it can be adopted")
	flags.StringVar(&r.Owner.ClusterId, "cluster", "", "id of the cluster that it is for: the UID of the namespace kube-system")
	flags.StringVar(&r.Owner.ClaimNamespace, "claim-namespace", "", "namespace of the claim that it is for")
	flags.StringVar(&r.Owner.ClaimName, "claim", "", "name of the claim that it is for")
	flags.StringVar(&r.Owner.ClaimUid, "claim-uid", "", "UID of the claim that it is for")
	return command
}

func (c *client) confirmAdoption() *cobra.Command {
	return &cobra.Command{
		Use: "confirm-adoption ID", Short: "Forget the former name of an adopted volume", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.call(cmd.Context(), func(ctx context.Context, l lvmdv1.LVMDClient) error {
				resp, err := l.ConfirmAdoption(ctx, &lvmdv1.ConfirmAdoptionRequest{Id: args[0]})
				if err != nil {
					return err
				}
				return c.printVolumes(cmd.OutOrStdout(), resp.GetVolume())
			})
		},
	}
}

func (c *client) revertAdoption() *cobra.Command {
	return &cobra.Command{
		Use: "revert-adoption ID", Short: "Give an adopted volume its former name back: it is no volume of Carve any more", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.call(cmd.Context(), func(ctx context.Context, l lvmdv1.LVMDClient) error {
				resp, err := l.RevertAdoption(ctx, &lvmdv1.RevertAdoptionRequest{Id: args[0]})
				if err != nil {
					return err
				}
				_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s/%s\n", resp.GetVgName(), resp.GetLvName())
				return err
			})
		},
	}
}
