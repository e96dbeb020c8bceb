"""What every bench needs: the machine, statistics, processes, bars and reports."""
