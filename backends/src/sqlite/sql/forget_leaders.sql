DELETE FROM leaders
